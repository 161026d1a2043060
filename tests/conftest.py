"""What all tests are run with."""

import hypothesis


def pytest_configure(config):
    """Examples that Hypothesis finds are others each time in `make check` alone, which leaves out no test."""
    hypothesis.settings.register_profile(
        "busy",  # as some machines are: an example that takes long is no failure
        deadline=None,
        derandomize=bool(config.option.markexpr),
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("busy")
