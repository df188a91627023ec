"""Benchmarks. What they measure decides how Arrow allocates, when it's loaded: so it comes first."""

import include as include
