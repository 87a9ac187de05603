"""Results -> inline SVG."""
