# The front door: every target does its own set-up; `make help` lists them.
# Recipes need nothing but make; what they start is installed by tools/setup/setup.sh.

PYTHON := .venv/bin/python
QUESTIONS := $(patsubst benchmarks/%/main.py,%,$(wildcard benchmarks/*/main.py))

# Another environment's packages would come before ours.
unexport PYTHONPATH PYTHONHOME

.DEFAULT_GOAL := help
.PHONY: help setup demo test check report lint lock wheel cuda clean

help: ## list the targets (default)
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 16
	@for question in $(QUESTIONS); do \
		printf '  make bench-%-22s %s\n' $$question "$$(sed -n '1s/^"""//p' benchmarks/$$question/main.py)"; done

setup: ## install what the other targets need; they call it themselves
	@tools/setup/setup.sh

# Four workers share this machine's cores, one thread each; one GPU would not hold all four. Level 3
# leaves out what TensorFlow's C++ prints in each worker when it finds no GPU.
demo: export CUDA_VISIBLE_DEVICES := -1
demo: export TF_NUM_INTRAOP_THREADS := 1
demo: export TF_CPP_MIN_LOG_LEVEL := 3
demo: setup ## train a small CNN on handwritten digits with 4 workers on this machine
	.venv/bin/horovodrun --gloo -np 4 $(PYTHON) -m examples.digits.main

test: setup ## build everything and test it; ends with the number of cases
	@$(PYTHON) -m tools.bazel.run_tests

check: setup ## the same, what takes longer, and suites again with more workers, up to 8
	@$(PYTHON) -m tools.bazel.run_tests --thorough

# One folder of benchmarks/ per question, e.g. make bench-group_collectives.
bench-%: setup
	$(PYTHON) -m benchmarks.$*.main

report: bench-scheduling_2d ## measure all ways of summing gradients end to end, write docs/results/
	$(MAKE) bench-end_to_end

lint: setup ## check the Python sources with ruff
	.venv/bin/ruff check .

lock: setup ## pin requirements/*.in into requirements/*.txt, with hashes
	tools/setup/lock.sh

wheel: setup ## build dist/*.whl and try it in a fresh environment
	tools/setup/wheel.sh

cuda: setup ## compile the CUDA kernels and link the op library (needs nvcc, no GPU)
	tools/setup/cuda.sh

clean: ## remove what set-up and builds have made in the checkout, and Bazel's output; recipes' results stay
	-bazel clean --expunge
	rm -rf .cache .venv build/bdist.* build/cuda build/lib dist *.egg-info
	find custom_ops -name '*.so' -delete
