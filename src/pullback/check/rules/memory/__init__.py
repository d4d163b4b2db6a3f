"""What is kept between forward and backward is needed, noticed and freed."""
