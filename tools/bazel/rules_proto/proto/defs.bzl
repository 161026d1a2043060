"""The names of rules_proto mapped to the rules built into Bazel."""

proto_lang_toolchain = native.proto_lang_toolchain
proto_library = native.proto_library
