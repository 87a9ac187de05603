"""ntkdiag from a shell: one command a file, and what the commands share.

A command reads its words into the arguments of one public function, calls that, and prints what it
returns; `command_line` puts them together. Models and data come from the user's own files: `case`
reads a model with what is known of its examples, `probe_files` reads arrays.
"""
