"""A scheme of your own: a frozen dataclass that opens a session, and one line in a table.

Every client trains its own surrogate; at the end of the round the server half is not the mean but that of the
client whose last loss is the median. Not a good idea, but a whole one: with the line in the table it is a name like
any other, for `train`, in a config, in a comparison, with local rules, updates, every optimizer and both protocols.
"""

from dataclasses import dataclass
from typing import ClassVar

from cutlayer.data.tasks import digits
from cutlayer.engine.train import train
from cutlayer.models import mlp
from cutlayer.optim.local import FedProx
from cutlayer.registry import SCHEMES, Part
from cutlayer.schemes.base import Closed


@dataclass(frozen=True)
class MedianServer:
    wave_order: ClassVar[str] = "together"
    carry: ClassVar[str] = "sync"

    def open(self, server, clients, kept):
        return Session(server, clients)


class Session:
    def __init__(self, server, clients):
        self.server, self.rows = server, server.surrogates(len(clients))
        self.row = {j: r for r, j in enumerate(clients)}
        self.memory, self.loss = server.memory(server.slots(len(clients))), {}

    def step(self, wave, smashed):
        replies = self.server.backward(self.rows, self.row, smashed)
        self.server.step(self.rows, self.memory, sorted(self.row[reply.address.client] for reply in replies))
        for reply in replies:
            self.loss[reply.address.client] = float(reply.loss)
        return replies

    def close(self):
        ranked = sorted(self.loss, key=self.loss.get)
        return Closed(self.rows.row(self.row[ranked[len(ranked) // 2]]))


SCHEMES["median"] = Part(MedianServer, "the surrogate with the median loss", "an example")

if __name__ == "__main__":
    data = digits()
    clients = [(data.x[j::10], data.y[j::10]) for j in range(10)]
    task = {"test": (data.x_test, data.y_test), "batch_size": 16, "rounds": 4}
    for scheme in ("fedavg", "median"):
        for more in ({}, {"local": FedProx(0.01), "update": "fedavgm"}, {"protocol": "cyclesl", "optimizer": "adam"}):
            result = train(mlp((1, 8, 8), 10), clients, scheme=scheme, **task, **more)
            print(f"{scheme} {more}: {[round(r.accuracy, 3) for r in result.history]}")
