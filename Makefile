# Two commands matter: "make demo" sets everything up and shows it, "make test" sets everything up
# and tests it. Both need python3 (3.11 or newer) with venv, gcc and make, and nothing else.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# Where Python is told to write no bytecode, as in many containers, each start compiles pytest's plugins.
unexport PYTHONDONTWRITEBYTECODE

# What runs on a client's machine, which may be a Mac.
CLIENT := cli consensus pool remoting/protocol remoting/transport remoting/client remoting/local \
  remoting/program remoting/daemon remoting/array_api

# Tests of the client that need no server process and nothing that only Linux has.
CLIENT_TESTS := tests/pool tests/cli/test_keys.py tests/cli/test_output.py \
  tests/cli/test_screen.py tests/cli/test_settings.py tests/cli/test_values.py tests/test_docs.py \
  tests/remoting/control/test_control_codecs.py tests/remoting/control/test_allocation_transcripts.py

.DEFAULT_GOAL := help
.PHONY: help install demo quick test tests slow-tests sanitized-tests client-tests coverage fuzz wheels test-wheels \
  check-wheel wheels-release packages test-packages lint lock docs site clean web-vendor browser-tests \
  root-tests audit

help:
	@echo "make demo   install into $(VENV), then show a pool of three servers at work"
	@echo "make quick  in seconds: lint of the files that differ from main, and tests of their rooms"
	@echo "make test   install into $(VENV), then lint, check types and run the tests"
	@echo "make root-tests   the tests of what only root can confine; as root"
	@echo "make audit  compare the locked versions with the database of advisories"
	@echo "make test-wheels   test the CUDA door with CUDA's runtimes, CuPy, numba and NCCL (1.1 GB)"
	@echo "make test-cupy     run CuPy's own tests through the array door; CUPY=/path/to/cupy"
	@echo "make test-pages    follow what the pages tell a reader to type; five minutes"
	@echo "make coverage      run the tests with coverage, and compare with the floor; slow"
	@echo "make fuzz   fuzz the array door, and what the native libraries read; RUNS=10000000; needs clang"
	@echo "make sanitized-tests   run the C programs behind the CUDA door with AddressSanitizer"
	@echo "make browser-tests test the web page in Debian's Chromium, with axe-core from npm"
	@echo "make test-monitoring  that, and metrics, rules and panels with Debian's Prometheus"
	@echo "make page-types   check the types of the page's JavaScript by TypeScript from npm"
	@echo "make web-vendor    get the page's browser libraries anew from npm, and check their sums"
	@echo "make lock   write requirements/ anew; needs uv"
	@echo "make check-wheel   build the sdist and the wheel, and try the wheel in an empty environment"
	@echo "make wheels-release   build the sdist, wheels for two architectures and an SBOM in dist/"
	@echo "make packages         build .deb and .rpm of them"
	@echo "make test-packages    build, check and install all of that, twice; slow, some of it needs root"
	@echo "make test-chart       render the Helm chart, and check it against Kubernetes' schemas"
	@echo "make lint   only the budget of lines, ruff, pyright, the import rules, and the documents' style"
	@echo "make docs   write the pages and alerts anew that come from the program"
	@echo "make site   build the documentation site in build/site, and check all of its links"
	@echo "make test-site   build it, and ask its search"
	@echo "make clean  remove $(VENV) and what tools left behind"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "gpupool needs Python 3.11 or newer; say which: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

# With LOCKED=1, as in CI, the versions are those of requirements/, and pip compares their hashes.
# pysyncobj has no wheel. It and gpupool are built by what build.txt names, which is installed first:
# pip would get others for a build apart, and compares no hashes of them.
LOCKED ?=
APART := $(if $(LOCKED),--no-build-isolation)
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
HASHED := $(PIP_INSTALL) --require-hashes --only-binary :all:
FROM_SOURCE := --no-binary pysyncobj $(APART) --use-pep517

$(VENV)/installed: $(BIN)/python pyproject.toml $(wildcard setup.py)
	@echo "Installing gpupool into $(VENV): about half a minute, and a C compiler runs ..."
	$(if $(LOCKED),@$(HASHED) --requirement requirements/build.txt)
	$(if $(LOCKED),@$(HASHED) $(FROM_SOURCE) --requirement requirements/emulate.txt)
	@$(PIP_INSTALL) --use-pep517 $(APART) -e '.[emulate]'
	@touch $@

$(VENV)/installed-dev: $(BIN)/python pyproject.toml $(wildcard setup.py)
	$(if $(LOCKED),$(HASHED) --requirement requirements/build.txt)
	$(if $(LOCKED),$(HASHED) $(FROM_SOURCE) --requirement requirements/dev.txt)
	$(PIP_INSTALL) --use-pep517 $(APART) -e '.[dev]'
	@touch $@ $(VENV)/installed

install: $(VENV)/installed

demo: $(VENV)/installed
	$(BIN)/gpupool demo

lint: $(VENV)/installed-dev
	$(BIN)/python packaging/size.py
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/pyright --pythonpath $(BIN)/python --pythonplatform Darwin $(CLIENT)
	$(BIN)/pytest -q tests/test_layout.py
	$(BIN)/python packaging/array_surface.py --check
	$(BIN)/python packaging/site/error_sentences.py --check
	$(BIN)/python packaging/site/prose.py

quick: $(VENV)/installed-dev
	@$(BIN)/python -m tests.quick

# With THOROUGH=1, as in CI, also the tests marked long, and four times as many examples of properties.
THOROUGH ?=
PYTEST := $(BIN)/pytest --dist worksteal $(if $(THOROUGH),--hypothesis-profile=thorough)
CHOSEN := not slow and not gpu$(if $(THOROUGH),, and not long)
COMPLETE := --hypothesis-profile=thorough -m 'not slow and not gpu'

# First those that start no process, which fail most. The others wait for processes most of the time.
tests: $(VENV)/installed-dev
	$(PYTEST) -n auto -m '$(CHOSEN) and not process'
	$(PYTEST) -n 4 -m '$(CHOSEN) and process'

test: lint
	@$(MAKE) --no-print-directory tests

# What confines workers, and gives up a server's privileges: most of it is left out for others.
ROOT_TESTS := tests/remoting/host tests/remoting/privileges tests/remoting/control/test_ca_signer.py \
  tests/cli/test_privilege_separation.py tests/cli/test_closed_home.py tests/cli/test_full_disk.py \
  tests/cli/test_backup_restore.py tests/cli/test_emulate.py tests/consensus/test_findings_full_disk.py
root-tests: $(VENV)/installed-dev
	@test "$$(id -u)" = 0 || { echo "only root can run these tests"; exit 1; }
	$(BIN)/pytest -n 3 --dist worksteal $(COMPLETE) -rs $(ROOT_TESTS)

.PHONY: test-pages
# Each block of the pages that is marked as tested, as a reader types it, with a pool.
test-pages: $(VENV)/installed-dev
	$(BIN)/pytest -q -m slow tests/cli/test_page_blocks.py

# One after the other, because some of them use all of a machine.
slow-tests: $(VENV)/installed-dev
	$(BIN)/pytest -m slow --hypothesis-profile=thorough \
	  --ignore=tests/remoting/driver_api/test_fake_cuda_clients.py \
	  --ignore=tests/remoting/driver_api/test_cuda_door_wheels.py

# The C programs against the driver without a GPU, with AddressSanitizer in them and in the door's library.
# The library handles SIGSEGV itself, and memory that it has at its end goes with the process.
SANITIZERS := -fsanitize=address -fno-omit-frame-pointer -g
SANITIZED := tests/remoting/driver_api/test_cuda_door_calls.py tests/remoting/driver_api/test_cuda_door_graphs.py \
  tests/remoting/driver_api/test_cuda_door_memory.py tests/remoting/driver_api/test_cuda_door_corners.py \
  tests/remoting/driver_api/test_cuda_door_steps.py tests/remoting/driver_api/test_cuda_door_times.py \
  tests/remoting/driver_api/test_malicious_cuda_worker.py
sanitized-tests: $(VENV)/installed-dev
	$(BIN)/python -m gpupool.remoting.driver_api.build $(abspath $(VENV))/sanitized $(SANITIZERS)
	GPUPOOL_LIBRARY=$(abspath $(VENV))/sanitized GPUPOOL_SANITIZERS="$(SANITIZERS)" \
	  ASAN_OPTIONS=handle_segv=0:allow_user_segv_handler=1:detect_leaks=0 \
	  $(BIN)/pytest -q $(COMPLETE) $(SANITIZED)

client-tests: $(VENV)/installed-dev
	$(BIN)/gpupool --help
	$(BIN)/pytest $(COMPLETE) $(CLIENT_TESTS)

# Processes that tests start are measured too, except for workers, which may write nowhere, and those
# that are killed. With Python 3.12 and later, COVERAGE_CORE=sysmon takes a tenth of the time.
coverage: $(VENV)/installed-dev
	rm -rf .coverage-data
	$(BIN)/coverage run -m pytest -n 2 --dist worksteal $(COMPLETE)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

check-wheel: $(VENV)/installed-dev
	$(BIN)/python packaging/version.py
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	rm -rf $(VENV)/clean && $(PYTHON) -m venv $(VENV)/clean
	$(VENV)/clean/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl
	cd $(VENV)/clean && bin/gpupool version && bin/gpupool --help >/dev/null \
	  && bin/python -c 'import gpupool.remoting.program.agent, gpupool.remoting.worker.worker_main, gpupool.simulations' \
	  && bin/gpupool simulate --seed 1 --duration 3s
	GPUPOOL_WHEEL="$$(ls dist/*.whl)" $(BIN)/pytest -q tests/remoting/driver_api/test_hardening.py

# A release is the commit that HEAD names. Its metadata names the repository at URL, if you give one:
#   make wheels-release URL=https://example.org/gpupool
URL ?=
RELEASE := $(VENV)/release

$(RELEASE)/installed: $(BIN)/python requirements/release.txt
	rm -rf $(RELEASE) && $(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check \
	  --require-hashes --only-binary :all: --requirement requirements/release.txt
	@touch $@

wheels-release: $(RELEASE)/installed
	rm -rf dist
	GPUPOOL_URL="$(URL)" $(RELEASE)/bin/python packaging/wheels.py
	$(RELEASE)/bin/twine check --strict dist/*.whl dist/*.tar.gz

packages: wheels-release $(VENV)/installed
	$(BIN)/python packaging/packages.py --tools $(RELEASE)/bin/python --arch x86_64 aarch64

.PHONY: test-chart
# Helm's own library renders the chart, and Kubernetes' schemas judge it.
test-chart: $(VENV)/installed-dev $(RELEASE)/installed
	GPUPOOL_RELEASE_PYTHON=$(abspath $(RELEASE))/bin/python $(BIN)/pytest -q -m slow -rs \
	  --timeout 600 tests/packaging/test_helm_chart.py

# Slow tests of tests/packaging; each says what it needs, and is left out where that is missing.
test-packages: $(VENV)/installed-dev $(RELEASE)/installed
	GPUPOOL_RELEASE_PYTHON=$(abspath $(RELEASE))/bin/python $(BIN)/pytest -m slow -rs \
	  --timeout 1200 tests/packaging

# With clang's libFuzzer, AddressSanitizer and UBSan; RUNS are of all targets together.
RUNS ?= 1000000
fuzz: $(VENV)/installed-dev
	$(BIN)/python tests/fuzz/arrays.py --cases 50000 --programs 5000
	$(BIN)/python tests/fuzz/fuzz.py --runs $(RUNS)

# Exact versions with hashes, for servers and for development; uv reads pyproject.toml.
LOCK := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' pyproject.toml
lock:
	$(LOCK) --output-file requirements/server.txt
	$(LOCK) --extra dev --output-file requirements/dev.txt
	$(LOCK) --extra dev --extra browser --constraint requirements/dev.txt \
	  --output-file requirements/browser.txt
	$(subst pyproject.toml,requirements/release.in,$(LOCK)) --output-file requirements/release.txt
	$(subst pyproject.toml,requirements/build.in,$(LOCK)) --constraint requirements/dev.txt \
	  --output-file requirements/build.txt
	$(subst pyproject.toml,requirements/wheels.in,$(LOCK)) --constraint requirements/server.txt \
	  --output-file requirements/wheels.txt
	$(subst pyproject.toml,requirements/audit.in,$(LOCK)) --output-file requirements/audit.txt
	for extra in emulate cuda12 cuda13; do \
	  $(LOCK) --extra $$extra --constraint requirements/server.txt \
	    --output-file requirements/$$extra.txt || exit 1; \
	done
	$(subst pyproject.toml,--group pyproject.toml:docs,$(LOCK)) --output-file requirements/docs.txt

# Exact versions, whose hashes pip compares, against the database of advisories.
AUDIT := $(VENV)/audit
$(AUDIT)/installed: $(BIN)/python requirements/audit.txt
	rm -rf $(AUDIT) && $(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/python -m pip install --quiet --disable-pip-version-check \
	  --require-hashes --only-binary :all: --requirement requirements/audit.txt
	@touch $@

audit: $(AUDIT)/installed
	for list in requirements/*.txt; do \
	  $(AUDIT)/bin/pip-audit --require-hashes --requirement $$list || exit 1; \
	done

web-vendor: $(BIN)/python
	$(BIN)/python packaging/web_vendor.py

$(VENV)/installed-browser: $(VENV)/installed-dev
	$(if $(LOCKED),$(HASHED) $(FROM_SOURCE) --requirement requirements/browser.txt)
	$(PIP_INSTALL) --use-pep517 $(APART) -e '.[dev,browser]'
	@touch $@

# What needs Chromium, and what needs Prometheus; axe-core judges each page.
BROWSER_TESTS := tests/monitoring/web/test_browser.py tests/monitoring/web/test_server_page_browser.py \
  tests/monitoring/web/test_live_pool_browser.py
PROMETHEUS_TESTS := tests/monitoring/http/test_exporter_https.py tests/monitoring/health/test_alerts.py \
  tests/monitoring/test_metrics.py

browser-tests: $(VENV)/installed-browser page-types
	$(BIN)/python packaging/test_tools.py $(VENV)/axe.min.js
	GPUPOOL_AXE=$(abspath $(VENV))/axe.min.js $(BIN)/pytest -q -m slow -rs $(BROWSER_TESTS)

.PHONY: page-types
# Nothing is checked where Node.js or npm's registry is missing.
page-types: $(BIN)/python
	$(BIN)/python packaging/page_types.py $(VENV)/typescript

.PHONY: test-monitoring
# Debian's Prometheus and Chromium are installed where this is root; else their tests are left out.
test-monitoring: $(VENV)/installed-browser page-types
	$(BIN)/python packaging/test_tools.py $(VENV)/axe.min.js
	$(BIN)/pytest -q -m 'slow or not slow' -rs -k 'prom or panel or answers_again' $(PROMETHEUS_TESTS)
	GPUPOOL_AXE=$(abspath $(VENV))/axe.min.js $(BIN)/pytest -q -m slow -rs $(BROWSER_TESTS)

$(VENV)/wheels/installed: $(BIN)/python requirements/wheels.txt
	$(PYTHON) -m venv $(VENV)/wheels
	$(VENV)/wheels/bin/python -m pip install --quiet --disable-pip-version-check \
	  --require-hashes --only-binary :all: --requirement requirements/wheels.txt
	@touch $@

wheels: $(VENV)/wheels/installed

test-wheels: $(VENV)/installed-dev $(VENV)/wheels/installed
	GPUPOOL_CUDA_PYTHON=$(abspath $(VENV))/wheels/bin/python $(BIN)/pytest -n 2 -m slow \
	  tests/remoting/driver_api/test_fake_cuda_clients.py tests/remoting/driver_api/test_cuda_door_wheels.py

# CuPy's own tests on emulated GPUs, from a checkout of CuPy at the version that the drop-in names:
#   make test-cupy CUPY=/path/to/cupy FOLDERS="cupy_tests/math_tests cupy_tests/fft_tests"
CUPY ?=
FOLDERS ?=
.PHONY: test-cupy
test-cupy: $(VENV)/installed-dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check mpmath
	$(BIN)/python tests/array_suite/run_suite.py "$(CUPY)" $(FOLDERS)

docs: $(VENV)/installed-dev
	$(BIN)/python packaging/reference.py > docs/cli.md
	$(BIN)/python packaging/metrics_page.py docs/metrics.md
	$(BIN)/python packaging/site/error_sentences.py > docs/errors.md
	$(BIN)/python packaging/alert_rules.py > packaging/prometheus/alerts.yml
	GPUPOOL_REWRITE=1 $(BIN)/pytest -q tests/monitoring/health/test_health_page.py

$(VENV)/site/installed: $(BIN)/python requirements/docs.txt
	rm -rf $(VENV)/site && $(PYTHON) -m venv $(VENV)/site
	$(VENV)/site/bin/python -m pip install --quiet --disable-pip-version-check \
	  --require-hashes --only-binary :all: --requirement requirements/docs.txt
	@touch $@

# In build/site; open index.html there, no web server is needed. URL is as for wheels-release.
site: $(VENV)/site/installed
	$(VENV)/site/bin/python packaging/site/build_site.py --url "$(URL)"

.PHONY: test-site
# The search of the site answers the words of users with a guide; Node.js comes with pyright.
test-site: $(VENV)/installed-dev
	$(BIN)/pytest -q -m slow tests/test_site.py

clean:
	rm -rf $(VENV) build dist gpupool.egg-info .coverage-data coverage.xml .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
