"""The command line."""

import os

os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # looking for them would take a tenth of a start
