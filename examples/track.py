"""Follow a training in TensorBoard. The tracker reads the journal of the run, so it needs `out`."""

import tempfile
from pathlib import Path

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

import cutlayer as cl
from cutlayer.data.tasks import digits

data = digits()
clients = [(data.x[j::10], data.y[j::10]) for j in range(10)]
torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

with tempfile.TemporaryDirectory() as folder:
    out = Path(folder) / "run"
    result = cl.train(
        model,
        clients,
        test=(data.x_test, data.y_test),
        cut=1,
        rounds=5,
        batch_size=16,
        out=out,
        track="tensorboard",  # or a list: ["tensorboard", "mlflow"]
    )
    # while it trains, or afterwards: tensorboard --logdir OUT/track
    # for a run that was not tracked: cutlayer report OUT --to tensorboard
    events = EventAccumulator(str(out / "track" / "tensorboard")).Reload()
    for event in events.Scalars("accuracy"):
        print(f"round {event.step}: accuracy {event.value:.3f} {'#' * round(40 * event.value)}")

print("figures:", ", ".join(events.Tags()["scalars"][:8]), "...")
print("as in the journal:", [e.step for e in events.Scalars("loss")] == [record.n for record in result.history])
