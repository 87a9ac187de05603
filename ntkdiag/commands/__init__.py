"""ntkdiag from a shell: `of_model`, `of_checkpoints` and `of_run` hold the commands.

A command reads its words into the arguments of one public function, calls that, and prints what it
returns; `command_line` puts them together. Models and data come from the user's own files, which
`case` reads.
"""
