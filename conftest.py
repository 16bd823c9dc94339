"""The suite tests the plugin with pytest's own `pytester`."""

pytest_plugins = ["pytester", "pytest_llmbench.plugin"]
