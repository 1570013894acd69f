"""Records into tables; draws what it is given and does not import torch."""
