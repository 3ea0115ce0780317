"""Read and write the files of a history and of tables in any storage that Spark can access."""
