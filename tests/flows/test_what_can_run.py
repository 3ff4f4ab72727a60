def test_smoke(project):
    out = project.out(
        """
        import kinetic
        @kinetic.run(accelerator="cpu")
        def f(x): return x + 1
        print(f(1))
        """
    )
    assert out.endswith("2\n")
