"""A local stand-in for the providers' HTTP services, for development and CI: `python -m include.emulator`.

It imports nothing of the project outside this package, so it can be read, run and trusted by itself.
The clock, the store, the worker, faults and holds are shared; each provider is a subpackage that
brings routes for the application and a lifecycle for the worker.
"""
