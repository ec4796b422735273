"""eagle3lab: a research workbench for training, serving and understanding EAGLE-3 drafters."""

__version__ = "0.1.0"
