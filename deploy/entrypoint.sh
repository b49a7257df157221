#!/bin/bash
# Starts what a pod is for: an executor, as Spark asks for it, or else the given command.
#
# Spark gives an executor its settings in variables. Its own image has a longer script for this,
# which PySpark's package leaves out.

set -e
if [ "$1" != executor ]; then
    exec tini -s -- "$@"
fi

home=$("${PYSPARK_PYTHON:-python3}" -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')
readarray -t options < <(env | grep '^SPARK_JAVA_OPT_' | sort -t_ -k4 -n | sed 's/[^=]*=//')
exec tini -s -- "${JAVA_HOME:+$JAVA_HOME/bin/}java" \
    "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
    -cp "${SPARK_CONF_DIR:+$SPARK_CONF_DIR:}$home/jars/*" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" \
    --executor-id "$SPARK_EXECUTOR_ID" \
    --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
    --podName "$SPARK_EXECUTOR_POD_NAME"
