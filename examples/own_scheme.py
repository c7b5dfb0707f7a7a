"""A scheme of your own: a frozen dataclass that says what it is and opens a session for every round.

Every client trains its own surrogate; at the end of the round the server half is not the mean but that of the
client whose last loss is the median. Not a good idea, but a whole one: it goes wherever a scheme goes, with local
rules, updates, every optimizer, both protocols, and in every runtime.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

import cutlayer as cl
from cutlayer.schemes import Closed, Timing, Traits


@dataclass(frozen=True)
class MedianServer:
    traits: ClassVar[Traits] = Traits(
        order="together",  # all clients step at once ...
        carry="sync",  # ... and their fronts are averaged at the end of the round
        halves="central",  # a server half for each client, all of them where the session is
        meets="step",  # the losses are compared, so clients cannot be trained in groups
        own_gradient=True,  # each client gets the gradient of its own loss
        timing=Timing("round_barrier"),  # on simulated devices, nobody waits inside a round
        needs_labels="loss",  # it looks at the losses, which a server without labels does not know
    )

    def open(self, server, clients):
        return Session(server, clients)


class Session:
    def __init__(self, server, clients):
        self.server, self.rows = server, server.surrogates(len(clients))
        self.row = {j: r for r, j in enumerate(clients)}
        self.memory, self.loss = server.memory(server.slots(len(clients))), {}

    def step(self, wave, smashed):
        replies = self.server.backward(self.rows, self.row, smashed)
        agreed = {reply.address.client: reply for reply in self.server.agreed(replies)}  # all, but for lost clients
        self.server.step(self.rows, self.memory, sorted(self.row[j] for j in agreed))
        self.loss |= {j: float(reply.loss) for j, reply in agreed.items()}
        return replies

    def close(self):
        ranked = sorted(self.loss, key=self.loss.get)
        return Closed(self.rows.row(self.row[ranked[len(ranked) // 2]]))


if __name__ == "__main__":
    data = cl.dataset("digits", None)
    clients = [(data.x[j::10], data.y[j::10]) for j in range(10)]
    model = nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU()), nn.Linear(32, 10))
    task = {"test": (data.x_test, data.y_test), "batch_size": 16, "rounds": 4}
    for scheme in ("fedavg", MedianServer()):
        for more in ({}, {"local": "fedprox", "update": "fedavgm"}, {"protocol": "cyclesl", "optimizer": "adam"}):
            result = cl.train(model, clients, scheme=scheme, **task, **more)
            print(f"{scheme} {more}: {[round(r.accuracy, 3) for r in result.history]}")
