#!/bin/sh
# Runs Python for Spark with the pyspark of site-packages. Spark puts archives of its folder first in
# PYTHONPATH, and Python compiles the modules of an archive again in every process.
# SPARK_SITE_PYTHON is the interpreter.
set -f
IFS=:
kept=
for entry in $PYTHONPATH; do
  case $entry in
    "$SPARK_HOME"/*) ;;
    *) kept=$kept${kept:+:}$entry ;;
  esac
done
PYTHONPATH=$kept exec "$SPARK_SITE_PYTHON" "$@"
