# Each recipe makes the virtual environment it needs; `just` alone lists them.
python := env("PYTHON", "python3")
venv := ".venv"
bin := venv / "bin"

# List the recipes.
default:
    @just --list --unsorted

# Make or refresh the environment for users and developers.
[private]
env:
    #!/bin/sh
    set -eu
    if [ ! -f {{venv}}/.made ] || [ pyproject.toml -nt {{venv}}/.made ]; then
        {{python}} -m venv {{venv}}
        {{bin}}/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
        touch {{venv}}/.made
    fi

# Add PyTorch to the environment, so that `just test` runs the tests of training: the plain wheel first, which is a CPU build where there is no other.
install-qat: env
    {{bin}}/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
    {{bin}}/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,qat,qat-test]'

# Quantize the demo model on drawn pages and show what came of it.
demo *ARGS: env
    {{bin}}/calibrant demo {{ARGS}}

# Quantize a model: just calibrate --model m.onnx --data x.npz --config quant.cfg --out out/m [--keep raw|raw:N|stats] (paths from where you are)
[no-exit-message]
[arg("model", long="model")]
[arg("data", long="data")]
[arg("out", long="out")]
[arg("config", long="config")]
[arg("keep", long="keep")]
[arg("batch_size", long="batch-size")]
[arg("fix_input", long="fix-input")]
[arg("memory", long="memory")]
[arg("restart", long="restart", value="yes")]
calibrate model data out config="" keep="raw" batch_size="" fix_input="" memory="" restart="": env
    cd {{quote(invocation_directory())}} && {{quote(justfile_directory() / bin / "calibrant")}} run {{quote(model)}} --data {{quote(data)}} \
        --run {{quote(out + ".run")}} --prefix {{quote(out)}} --keep {{quote(keep)}} \
        {{ if config == "" { "" } else { "--config " + quote(config) } }} \
        {{ if batch_size == "" { "" } else { "--batch-size " + quote(batch_size) } }} \
        {{ if fix_input == "" { "" } else { "--fix-input " + quote(fix_input) } }} \
        {{ if memory == "" { "" } else { "--memory " + quote(memory) } }} \
        {{ if restart == "" { "" } else { "--restart" } }}

# Run the tests on all cores.
test *ARGS: env
    {{bin}}/python -m pytest -n auto --dist worksteal {{ARGS}}

# Run the tests of the HTML report in Chromium; screenshots go to build/browser.
browser *ARGS: env
    {{bin}}/python -m pytest tests/test_browser.py {{ARGS}}

# Install Debian's Chromium and its driver where they are missing, as root where apt-get is there.
install-browser:
    #!/bin/sh
    set -eu
    if command -v chromium > /dev/null && command -v chromedriver > /dev/null; then exit 0; fi
    if ! command -v apt-get > /dev/null || [ "$(id -u)" != 0 ]; then
        echo "install Debian's packages chromium and chromium-driver for the browser tests" >&2
        exit 0
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium chromium-driver > /dev/null

# Run the kernels' tests with compilation off.
test-nojit *ARGS: env
    NUMBA_DISABLE_JIT=1 {{bin}}/python -m pytest -n auto tests/test_twins_stats.py tests/test_twins_quantizers.py {{ARGS}}

# Check style and the direction of imports.
lint: env
    {{bin}}/ruff check .
    {{bin}}/ruff format --check .
    {{bin}}/lint-imports

# Check types.
types: env
    {{bin}}/mypy

# Measure every promise of speed side by side: just bench [WORDS] [--list] [--models DIR --data DIR] [--json] [--fail] [--docs FILE]
bench *ARGS: env
    {{bin}}/python -m bench {{ARGS}}

# Print what balancing and per-channel weights give a transformer: just bench-accuracy TOKENS.npz (fetches a MiniLM by its package name)
bench-accuracy tokens *ARGS: env
    {{bin}}/python -m bench.accuracy {{quote(tokens)}} {{ARGS}}

# Print what quantization-aware training wins back on scikit-learn's digits: three seeds, about a minute.
bench-qat *ARGS: install-qat
    {{bin}}/python -m bench.qat {{ARGS}}

# Generate the protobuf code with the oldest protobuf allowed.
proto:
    {{python}} -m venv .venv-proto
    .venv-proto/bin/python -m pip install --quiet --disable-pip-version-check '.[proto]' 'pytest>=8.4,<10' 'hypothesis>=6.130,<7'
    .venv-proto/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. calibrant/proto/calibration_config.proto calibrant/proto/retrain_config.proto calibrant/proto/optimize_conf.proto calibrant/proto/record.proto
    .venv-proto/bin/python -m pytest -q tests/test_proto_generated.py tests/test_simple_config.py tests/test_retrain_config.py tests/test_optimize_conf.py tests/test_record.py

# Write docs/tables.md anew from the schemas and their notes.
docs: env
    {{bin}}/python -m calibrant.stats.schema_page > .tables.md
    mv .tables.md docs/tables.md

# Build the wheel.
build: env
    {{bin}}/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

# Install the wheel into an empty environment and run the command and the demo there.
smoke: build
    #!/bin/sh
    set -eu
    here=$(mktemp -d)
    trap 'rm -rf "$here"' EXIT
    {{python}} -m venv "$here/venv"
    "$here/venv/bin/python" -m pip install --quiet --disable-pip-version-check dist/calibrant-*.whl
    cd "$here"
    venv/bin/calibrant --help > help.txt
    grep -q "calibrant run model.onnx" help.txt
    venv/bin/calibrant demo --out demo > demo.txt
    cat demo.txt
    grep -q "^deploy_model: " demo.txt
