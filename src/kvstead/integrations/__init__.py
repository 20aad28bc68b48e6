"""Engines and model libraries on kvstead's memory. Each subpackage needs the extra of its name, see the README."""
