#!/bin/sh
# Runs Python for Spark with the pyspark of site-packages. Spark puts archives of its folder first in
# PYTHONPATH, and Python compiles the modules of an archive again in every process.
# SPARK_SITE_PYTHON is the interpreter.
set -f
home=${SPARK_HOME:-/SPARK_HOME is not set}
IFS=:
kept=
for entry in $PYTHONPATH; do
  case $entry in
    "$home"/*) ;;
    *) kept=$kept${kept:+:}$entry ;;
  esac
done
PYTHONPATH=$kept exec "$SPARK_SITE_PYTHON" "$@"
