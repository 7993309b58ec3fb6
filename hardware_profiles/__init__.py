"""Hardware profiles: what the hardware is and how long it takes. Accelerators and clusters are TOML files."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
