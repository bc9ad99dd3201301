"""The main job: corpus × model × metrics → a profile of every layer."""

from layerscope.profiling.config import ProfileConfig
from layerscope.profiling.job import profile
from layerscope.profiling.run import Profile

__all__ = ["Profile", "ProfileConfig", "profile"]
