"""The settings of every program: one model, and where each value comes from (flag, environment, file, default)."""

from perdure.hosting.settings.model import Settings
from perdure.hosting.settings.reading import changed, in_force, load, using

__all__ = ["Settings", "changed", "in_force", "load", "using"]
