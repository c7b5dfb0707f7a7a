"""MLflow: a database in `RUN/track/mlflow`, or the server that MLFLOW_TRACKING_URI names.

The store says what it holds of the run. If that is the beginning of the journal, the rest is added. If it is anything
else, such as rounds that were played again, the run there is deleted and written anew.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cutlayer.track.base import PROJECT, About, Row, last

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

METRICS, PARAMS, LONGEST = 1000, 100, 6000  # what MLflow takes in one request, and of one value
ALWAYS = "seconds"  # a figure that every round has, and no two trainings share
STATUS = {"complete": "FINISHED", "diverged": "FAILED", "unfinished": "KILLED"}


class MLflow:
    def __init__(self, about: About, known: Sequence[Row]) -> None:
        from mlflow.tracking import MlflowClient

        uri = os.environ.get("MLFLOW_TRACKING_URI")
        own = f"sqlite:///{(about.folder / 'mlflow.db').as_posix()}"
        self._client: MlflowClient = MlflowClient(uri or own, registry_uri=uri or own)
        self._last = last(known)
        params = {name: str(value)[:LONGEST] for name, value in about.config.items()}
        held = self._held(about.note(), known, params)
        if held is None:
            place = None if uri else (about.folder / "artifacts").as_uri()
            run = self._client.create_run(self._experiment(about.group or PROJECT, place), run_name=about.label)
            self._run, held = about.keep(run.info.run_id), set()
            self._params(params)
        else:
            self._client.update_run(self._run, status="RUNNING")
        self._add([one for one in known if one.step not in held])

    def log(self, row: Row) -> None:
        self._add([row])
        self._last = row.step

    def close(self, status: str, summary: Mapping[str, float]) -> None:
        name = next(iter(summary), None)
        held = self._client.get_metric_history(self._run, name) if name else []
        if self._last not in {metric.step for metric in held}:
            self._add([Row(self._last, summary)])
        self._client.set_terminated(self._run, STATUS[status])

    def _held(self, run: str | None, known: Sequence[Row], params: Mapping[str, str]) -> set[int] | None:
        """Return the rounds that the store holds, or None if it holds nothing to go on with."""
        from mlflow.exceptions import MlflowException

        if run is None:
            return None
        try:
            found = self._client.get_run(run)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        if found.info.lifecycle_stage != "active":
            return None
        self._run = run
        held = {metric.step: metric.value for metric in self._client.get_metric_history(run, ALWAYS)}
        wanted = {one.step: one.values[ALWAYS] for one in known}
        if found.data.params == params and held.items() <= wanted.items():
            return set(held)
        self._client.delete_run(run)
        return None

    def _experiment(self, name: str, place: str | None) -> str:
        from mlflow.exceptions import MlflowException

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", name)
        if "MLFLOW_EXPERIMENT_ID" in os.environ:
            return os.environ["MLFLOW_EXPERIMENT_ID"]
        if (found := self._client.get_experiment_by_name(name)) is None:
            try:
                return str(self._client.create_experiment(name, artifact_location=place))
            except MlflowException:  # another run of the comparison was faster
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        return str(found.experiment_id)

    def _params(self, params: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        found = [Param(name, value) for name, value in params.items()]
        for start in range(0, len(found), PARAMS):
            self._client.log_batch(self._run, params=found[start : start + PARAMS])

    def _add(self, rows: Sequence[Row]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        found = [Metric(name, float(value), now, row.step) for row in rows for name, value in row.values.items()]
        for start in range(0, len(found), METRICS):
            self._client.log_batch(self._run, metrics=found[start : start + METRICS])
