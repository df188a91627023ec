"""The workloads: what each asks for, and the steps that carry a run from its sources to its index."""
