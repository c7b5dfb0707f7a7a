"""Models as ordered blocks: small ones for 8x8 digits, 28x28 and 32x32 images, and those of the papers.

`cut=L` leaves blocks 0..L with the client:

    mlp          0 flatten, linear, relu     1, 2 linear, relu                                     3 linear
    cnn          0 conv, relu                1 conv, relu, pool            2 conv, relu, pool      3 flatten, linear
    resnet       0 conv, norm, relu          1, 2, 3 residual blocks                               4 pool, linear
    resnet18     0 stem                      1 .. 8 residual blocks                                9 pool, linear
    resnet34     0 stem                      1 .. 16 residual blocks                               17 pool, linear
    resnet9      0 conv                      1, 3, 4 conv, pool            2, 5 residual blocks    6 pool, linear
    vgg11        0 conv, norm, relu, pool    1 .. 7 the same, some without pool                    8 head
    vgg16        0 conv, norm, relu          1 .. 12 the same, some with pool                      13 head
    mobilenetv2  0 conv, norm, relu          1 .. 17 inverted residual blocks                      18 conv, pool, linear
    densenet121  0 conv, norm, relu, pool    1, 3, 5, 7 dense blocks       2, 4, 6 transitions     8 norm, pool, linear
    densenet169  0 conv, norm, relu, pool    1, 3, 5, 7 dense blocks       2, 4, 6 transitions     8 norm, pool, linear
    leaf_cnn     0, 1 conv, relu, pool       2 flatten, linear, relu                               3 linear
    celeba_cnn   0 conv, norm, pool, relu    1, 2, 3 the same                                      4 flatten, linear
    leaf_lstm    0 embedding                 1 two-layer LSTM, last step                           2 linear
    transformer  0 embeddings                1 .. 6 encoder layers                                 7 last step, linear

Text models take rows of shape (length,), the numbers of the symbols. Weights have torch's default initialisation,
except in `vgg11` and `vgg16` with `norm="none"`.
"""

from __future__ import annotations

from cutlayer.models.cnn import cnn
from cutlayer.models.densenet import densenet121, densenet169
from cutlayer.models.leaf import celeba_cnn, leaf_cnn, leaf_lstm
from cutlayer.models.mlp import mlp
from cutlayer.models.mobilenet import mobilenetv2
from cutlayer.models.resnet import resnet, resnet18, resnet34
from cutlayer.models.resnet9 import resnet9
from cutlayer.models.shapes import example
from cutlayer.models.transformer import transformer
from cutlayer.models.vgg import vgg11, vgg16

__all__ = [
    "celeba_cnn",
    "cnn",
    "densenet121",
    "densenet169",
    "example",
    "leaf_cnn",
    "leaf_lstm",
    "mlp",
    "mobilenetv2",
    "resnet",
    "resnet9",
    "resnet18",
    "resnet34",
    "transformer",
    "vgg11",
    "vgg16",
]
