#!/bin/sh
# rdma-core's own tests, as its Debian package has them:
#   simnic run --package rdma-core -- sh simnic/examples/pyverbs.sh [TEST...]
set -eu
cp -r /usr/share/doc/rdma-core/tests /tmp/tests
gunzip --recursive --force /tmp/tests
cd /tmp
PYTHONPATH=/tmp:/tmp/tests exec python3 tests/run_tests.py --dev mlx5_0 --gid 3 "$@"
