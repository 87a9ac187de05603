"""What a monitor measures: one file for each instrument, or for those of one kind."""
