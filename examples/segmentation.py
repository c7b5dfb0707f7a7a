"""Not a classifier: a U-Net that finds the strokes of noisy digits, cut outside its skips, with a streaming IoU."""

import torch
from torch import nn

import cutlayer as cl


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inc = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU())
        self.down = nn.Conv2d(8, 16, 3, 2, 1)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.merge = nn.Conv2d(16, 8, 3, padding=1)
        self.out = nn.Conv2d(8, 2, 1)

    def forward(self, x):
        high = self.inc(x)
        low = torch.relu(self.down(high))
        return self.out(torch.relu(self.merge(torch.cat([high, self.up(low)], 1))))


class IoU:
    """Intersection over union of the strokes; it never sees more than a few batches at a time."""

    def __init__(self):
        self.both = self.either = 0

    def update(self, out, y):
        guess = out.argmax(1)
        self.both += int((guess & y).sum())
        self.either += int((guess | y).sum())

    def compute(self):
        return self.both / max(self.either, 1)


torch.manual_seed(0)
data = cl.dataset("digits", None)
x, y = data.x + 0.2 * torch.randn(data.x.shape), (data.x[:, 0] > 0.5).long()
clients = [(x[j:1200:8], y[j:1200:8]) for j in range(8)]
try:
    cl.blocks(UNet(), at=["down"], example=x[:2])
except cl.ContractError as error:
    print(error)  # inside the skip
model = cl.blocks(UNet(), at=["inc", "merge"], example=x[:2])
test = (x[1200:], y[1200:])
result = cl.train(model, clients, test, cut="inc", rounds=5, batch_size=16, local_epochs=2, metric=IoU)
for record in result.history:
    print(f"round {record.n}: loss {record.loss:.3f}, IoU {record.metric:.3f}")
