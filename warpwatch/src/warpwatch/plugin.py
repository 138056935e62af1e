"""The plugin of pytest: `pytest --warpwatch`. Nothing else is imported before that is asked for."""

import os


def pytest_addoption(parser):
    """Add the option."""
    text = "run each CUDA kernel of Numba's on the CPU, every access watched: what is found fails the test"
    parser.getgroup("warpwatch").addoption("--warpwatch", action="store_true", help=text)


def pytest_configure(config):
    """Add the marker, and watch if that is asked for."""
    config.addinivalue_line("markers", "warpwatch(ignore): leave out what is found, as 'KERNEL: KIND' or 'KERNEL'")
    if config.getoption("--warpwatch") or os.environ.get("WARPWATCH") == "1":
        from warpwatch.suite import Suite

        config.pluginmanager.register(Suite(config), "warpwatch-suite")
