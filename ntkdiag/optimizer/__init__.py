"""What an optimizer does with a gradient: of the update that it made, and of the next one."""
