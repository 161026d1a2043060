"""What all tests are run with."""

import hypothesis

# Some machines are busy: an example that takes long is no failure.
hypothesis.settings.register_profile(
    "busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("busy")
