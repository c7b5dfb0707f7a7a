"""The commands themselves. Only these modules import torch and numpy."""
