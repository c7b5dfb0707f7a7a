"""Small models as ordered blocks, sized for 8x8 digits, 28x28 and 32x32 images.

`cut=L` leaves blocks 0..L with the client:

    mlp      0 flatten, linear, relu      1, 2 linear, relu            3 linear
    cnn      0 conv, relu                 1 conv, relu, pool           2 conv, relu, pool    3 flatten, linear
    resnet   0 conv, norm, relu           1, 2, 3 residual blocks                            4 pool, linear
    leaf_cnn 0, 1 conv, relu, pool        2 flatten, linear, relu      3 linear
"""

from __future__ import annotations

from cutlayer.models.cnn import cnn
from cutlayer.models.leaf import leaf_cnn
from cutlayer.models.mlp import mlp
from cutlayer.models.resnet import resnet
from cutlayer.table import Part

MODELS: dict[str, Part] = {
    "mlp": Part(mlp, "three hidden layers (depth); 4 blocks", "-"),
    "cnn": Part(cnn, "three 3x3 convolutions; 4 blocks", "-"),
    "resnet": Part(resnet, "three residual blocks with batch or group norm; 5 blocks", "He et al., CVPR 2016"),
    "leaf_cnn": Part(leaf_cnn, "two 5x5 convolutions and a wide layer; 4 blocks", "Caldas et al. (LEAF), 2018"),
}

__all__ = ["MODELS", "cnn", "leaf_cnn", "mlp", "resnet"]
