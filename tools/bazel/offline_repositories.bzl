"""Stand-ins for the repositories that Bazel itself would download."""

def offline_repositories():
    """Declares local stubs under the names which Debian's Bazel 4 looks up.

    Debian's Bazel reports no version; a newer upstream Bazel carries or fetches the real rule sets
    and must not see the stubs.
    """
    if native.bazel_version not in ["", "no_version"]:
        return
    for repository in ["remote_coverage_tools", "rules_cc", "rules_java", "rules_proto"]:
        native.local_repository(
            name = repository,
            path = "tools/bazel/" + repository,
        )
