"""Headway: fast mode for the models you run yourself, in front of vLLM."""

__version__ = "0.2.0rc1"
