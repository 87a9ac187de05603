"""Training diagnostics for Flax and Equinox models, on the empirical neural tangent kernel.

Public names are those of `__init__.pyi`; each is loaded when it is first used.
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
