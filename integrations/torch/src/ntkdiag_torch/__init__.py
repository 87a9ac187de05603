"""Modules and checkpoints of PyTorch in ntkdiag."""

from ntkdiag_torch.adapter import functionalize as functionalize
from ntkdiag_torch.state_dict_file import read_state_dict as read_state_dict
