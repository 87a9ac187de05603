"""The instruments of a monitor."""
