"""What every benchmark needs: peers' environments, worker processes, paired timing, result files."""
