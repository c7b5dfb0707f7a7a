"""Files and frames as they were when their formats were frozen; every later version reads them."""
