"""The package that an installed eagleeye adds to an environment: its other packages lie in its folder `home`."""
