"""What rules say, as data: findings, which of them explain others, and the report."""
