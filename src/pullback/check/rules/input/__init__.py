"""Arguments that cannot be served are refused in forward."""
